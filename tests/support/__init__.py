"""What the tests of several roles share: waiting, clocks, TLS, played servers, sizes of property tests.

It may import the product and deploy.local. Whatever one role alone needs lies in that role's folder.
"""
