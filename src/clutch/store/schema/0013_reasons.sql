-- A reason is one word of a fixed list (core/model.py) and a detail; both were one text.
ALTER TABLE tasks ADD COLUMN detail {text} NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN detail {text} NOT NULL DEFAULT '';
ALTER TABLE deliveries ADD COLUMN detail {text} NOT NULL DEFAULT '';
CREATE TEMPORARY TABLE reason_texts(beginning {text} NOT NULL, word {text} NOT NULL);
INSERT INTO reason_texts(beginning, word) VALUES ('spawn-failed: ', 'spawn-failed'),
  ('no longer waiting: ', 'no longer waiting'), ('resumed @step ', 'resumed @step'),
  ('process was frozen for ', 'process was frozen for'), ('plan rejected: ', 'plan rejected'), ('error: ', 'error'),
  ('killed: ', 'killed'), ('pruned: ', 'pruned'), ('deferred: ', 'deferred'), ('delivered: ', 'delivered'),
  ('unsure: ', 'unsure'), ('skipped: ', 'skipped'), ('attempt ', 'attempt'), ('undelivered: ', 'undelivered'),
  ('cleanup failed: ', 'cleanup failed'), ('session ended: ', 'session ended'), ('late: ', 'late');
UPDATE tasks SET detail = SUBSTR(reason, LENGTH(beginning) + 1), reason = word FROM reason_texts
  WHERE SUBSTR(reason, 1, LENGTH(beginning)) = beginning;
UPDATE events SET detail = SUBSTR(reason, LENGTH(beginning) + 1), reason = word FROM reason_texts
  WHERE SUBSTR(reason, 1, LENGTH(beginning)) = beginning;
UPDATE tasks SET delivery_reason = 'unsure' WHERE delivery = 'unsure';
UPDATE deliveries SET detail = reason, reason = outcome WHERE outcome IN ('failed', 'unsure');
DROP TABLE reason_texts;
-- All other texts of a timeline are notes.
CREATE TEMPORARY TABLE reason_words(word {text} PRIMARY KEY);
INSERT INTO reason_words(word) VALUES (''), ('reserved'), ('admitted'), ('spawn-failed'), ('started'),
  ('no longer waiting'), ('grace cancelled'), ('resumed @step'), ('process was frozen for'), ('children settled'),
  ('pause'), ('children'), ('needs-you'), ('quota'), ('budget'), ('provider'), ('restart'), ('interrupt'), ('resumed'),
  ('steered'), ('steered: joins what it reads next'), ('retry'), ('continue'), ('plan ready'), ('plan approved'),
  ('plan sent back'), ('plan rejected'), ('plan expired'), ('ended'), ('ok'), ('error'), ('timeout'), ('killed'), ('lost'),
  ('pruned'), ('its session is gone'), ('descendants expired'), ('descendants-active'), ('missing-requester'),
  ('requester-busy'), ('quiet-hours'), ('deferred'), ('no longer deferred'), ('requester is back'),
  ('nobody came back'), ('delivered'), ('direct'), ('queued'), ('unsure'), ('skipped'), ('announce-skip'), ('silent'),
  ('requester killed'), ('superseded'), ('attempt'), ('failed'), ('undelivered'), ('permanent-error'), ('retry-limit'),
  ('expiry'), ('no-requester'), ('dropped'), ('redelivered'), ('dismissed'), ('expired'), ('cleanup failed'),
  ('session ended'), ('archived'), ('deleted'), ('removed'), ('late'), ('note');
UPDATE tasks SET detail = reason, reason = 'note' WHERE reason NOT IN (SELECT word FROM reason_words);
UPDATE events SET detail = reason, reason = 'note' WHERE reason NOT IN (SELECT word FROM reason_words);
UPDATE deliveries SET detail = reason, reason = 'note' WHERE reason NOT IN (SELECT word FROM reason_words);
UPDATE tasks SET delivery_reason = 'note' WHERE delivery_reason NOT IN (SELECT word FROM reason_words);
DROP TABLE reason_words;
