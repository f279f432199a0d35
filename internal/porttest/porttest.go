// Package porttest chooses ports for the servers of tests that are stopped and
// started again where they were.
package porttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Systems give out ports from 32768 on (Linux) or 49152 on (RFC 6335, section 6) for
// connections and for listeners that ask for any. A port from there may be another's by the
// time a server wants it again.
const first, last = 16384, 32767

var (
	mu    sync.Mutex
	given = make(map[int]bool)
)

// Free returns a port on 127.0.0.1 on which nothing listens, and which the system gives to
// nobody. Each call returns another.
func Free() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	var failed error
	for range 100 {
		port := first + rand.IntN(last-first+1)
		if given[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil { // somebody's
			failed = err
			continue
		}
		given[port] = true
		return port, l.Close()
	}
	return 0, errors.Join(errors.New("porttest: no free port"), failed)
}
