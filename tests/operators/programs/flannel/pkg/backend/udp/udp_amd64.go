// Package udp replaces the backend over UDP, which needs a C compiler and which no test uses.
package udp
