package testkit

import (
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
)

// Linux gives ports from 32768 on to connections and to listeners that ask for any, other
// systems from 49152 on (RFC 6335, section 6). A server that is stopped and started again
// on such a port may find that another process has it.
const firstPort, lastPort = 16384, 32767

var ports struct {
	mu   sync.Mutex
	next int
}

// Port returns a port of 127.0.0.1 on which nothing listens and which the system gives to
// nobody, for a server that is stopped and started again on it. Each call returns another.
func Port(t testing.TB) int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.next == 0 {
		// Test binaries run beside each other: each starts at another place.
		ports.next = firstPort + os.Getpid()*61%(lastPort-firstPort)
	}
	for range lastPort - firstPort {
		port := ports.next
		if ports.next++; ports.next > lastPort {
			ports.next = firstPort
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // in use
		}
		l.Close()
		return port
	}
	t.Fatal("testkit: no free port")
	return 0
}
