"""The browser of the report's tests."""

from browser import browser as browser
