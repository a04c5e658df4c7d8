"""The browser page that `clutch open` shows: static files without a build step; `page.js` uses the HTTP API."""
