-- Web Push: notifications to the browsers and phones that asked for them.

-- The key pair that push services know this database by. There is one row; made when the first device asks.
CREATE TABLE push_keys(id {big} PRIMARY KEY, private {text} NOT NULL, public {text} NOT NULL){without_rowid};
-- Where a device is reached, and the keys of its browser. It ends with the session of the device.
CREATE TABLE push_subscriptions(
  device {text} PRIMARY KEY, endpoint {text} NOT NULL, p256dh {text} NOT NULL, auth {text} NOT NULL,
  until {float} NOT NULL){without_rowid};

-- Main sessions, few among those of all tasks: the dashboard reads them after each change.
CREATE INDEX sessions_main ON sessions(id) WHERE is_task = 0;
