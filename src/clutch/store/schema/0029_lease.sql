-- How long the lease of each worker is: gateways may have different settings. Rows of older versions have no value.
ALTER TABLE workers ADD COLUMN lease_s {float};
