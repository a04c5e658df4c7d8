// The connection of an exported page: there is none, and time stands still at the moment of the export.

import { data, problemText } from "/web/api.js";

const exportedAt = Date.parse(data.exportedAt);

export const connection = {
  state: "live",
  isExported: true,
  lostAt: null,
  now: exportedAt,
  onChange() {},
  on() {},
  useLoader() {},
  start: async () => "",
  failed: (error) => problemText(error),
};
