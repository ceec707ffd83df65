//! Claims, drivers and the health of devices with a driver at a unix socket.
