"""The browser pages: tasks and the inbox (`page.js`), and requests to the HTTP API (`docs.js`). No build step."""
