"""The drivers that come with the package. Vendors' own are found through entry points (`lazy_backend.driver.discovery`)."""
