#!/usr/bin/python3
"""A WebKitGTK browser for WebKitWebDriver that keeps its data in WEBKIT_DATA.

Where that is empty it keeps nothing, as MiniBrowser --automation always does: there WebKit refuses Blobs in IndexedDB.
"""

import os

import gi

gi.require_version('Gtk', '3.0')
gi.require_version('WebKit2', '4.1')
from gi.repository import Gtk, WebKit2

data = os.environ['WEBKIT_DATA']
if data:
    manager = WebKit2.WebsiteDataManager(base_data_directory=data + '/data', base_cache_directory=data + '/cache')
else:
    manager = WebKit2.WebsiteDataManager.new_ephemeral()
context = WebKit2.WebContext(website_data_manager=manager)
context.set_automation_allowed(True)


def create_view(_session):
    view = WebKit2.WebView(web_context=context, is_controlled_by_automation=True)
    window = Gtk.Window()
    window.set_default_size(1000, 700)
    window.add(view)
    window.show_all()
    view.connect('close', lambda _view: window.destroy())
    return view


def start(_context, session):
    info = WebKit2.ApplicationInfo()
    info.set_name('webkit-host')
    info.set_version(1, 0, 0)
    session.set_application_info(info)
    session.connect('create-web-view', create_view)


context.connect('automation-started', start)
Gtk.main()
