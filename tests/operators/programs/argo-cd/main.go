// Redis for Argo CD: the implementation that its own tests use, with the redis-server flags of its
// manifest.
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
	// As in redis-server, a flag and its value may be one argument; --save and --appendonly configure
	// a disk, which miniredis does not have.
	words := strings.Fields(strings.Join(os.Args[1:], " "))
	for i := 0; i+1 < len(words); i++ {
		if words[i] == "--requirepass" {
			server.RequireAuth(words[i+1])
		}
	}
	if err := server.StartAddr(":6379"); err != nil {
		log.Fatalf("cannot listen on port 6379: %v", err)
	}
	log.Print("Ready to accept connections")
	// miniredis expires keys only when its clock is advanced.
	for range time.Tick(time.Second) {
		server.FastForward(time.Second)
	}
}
