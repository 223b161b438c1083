"""The page as text: complete, escaped, self-contained, the same each time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from fedloom.core.errors import ConfigError
from fedloom.report import write_report

from .conftest import scenario
