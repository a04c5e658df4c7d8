"""The page behind `clutch open`, as a browser gets it: `page.js` asks the HTTP API, and nothing is built."""
