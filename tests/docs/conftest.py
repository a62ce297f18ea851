"""The browser of the site's tests."""

from browser import browser as browser
