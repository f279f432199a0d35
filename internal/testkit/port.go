package testkit

import (
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
)

// Linux assigns ports from 32768 on to connections and to listeners on port 0. Other
// systems do so from 49152 on (RFC 6335, section 6). If a server restarts on such a port,
// another process may have taken it meanwhile.
const firstPort, lastPort = 16384, 32767

var ports struct {
	mu   sync.Mutex
	next int
}

// Port returns a port of 127.0.0.1 on which nothing listens and which the system does not
// assign to others. So a test can stop a server and start it again on the same port. Each
// call returns another port.
func Port(t testing.TB) int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.next == 0 {
		// Several test binaries run at once. Each starts at a different port.
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
