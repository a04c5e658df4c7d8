"""The browser pages: the dashboard (`main.js`, one file per view) and the page of the HTTP API (`docs.js`)."""
