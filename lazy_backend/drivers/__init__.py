"""The drivers that come with the package. Others are found through entry points (`lazy_backend.driver.discovery`)."""
