// Redis for Argo CD: the implementation with which its own tests run, behind the flags of redis-server that its manifest gives.
package main

import (
	"log"
	"os"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	server := miniredis.NewMiniRedis()
	// As redis-server: a flag and its value may be one argument; --save and --appendonly are about a disk that this one has not.
	words := strings.Fields(strings.Join(os.Args[1:], " "))
	for i := 0; i+1 < len(words); i++ {
		if words[i] == "--requirepass" {
			server.RequireAuth(words[i+1])
		}
	}
	if err := server.StartAddr(":6379"); err != nil {
		log.Fatalf("port 6379 is not to be had: %v", err)
	}
	log.Print("Ready to accept connections")
	// Its keys expire when it is told that time has gone by.
	for range time.Tick(time.Second) {
		server.FastForward(time.Second)
	}
}
