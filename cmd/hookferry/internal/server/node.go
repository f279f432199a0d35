package server

import (
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// nodeName names this server among others: the host's name and a part made up,
// as each of several containers may be process 1 of the same host.
func nodeName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	// PostgreSQL shows the first 63 bytes of "hookferry NAME".
	const maxHost = 63 - len("hookferry ") - len("/abcdef")
	return host[:min(len(host), maxHost)] + "/" + strings.ToLower(rand.Text()[:6])
}

// node says how this server is.
func (s *server) node() api.Node {
	stats := s.forwarder.Stats()
	n := api.Node{
		Name: s.name, Version: s.Version, Started: &s.started, Ready: s.ready.ready(),
		InFlight: stats.InFlight, Delivered: stats.Delivered,
	}
	if s.feed != nil {
		n.Rates = s.feed.Rates("")
	}
	return n
}

// note is what other servers of the store are shown of this one.
func (s *server) note() []byte {
	note, err := json.Marshal(s.node())
	if err != nil {
		return nil // as if nothing were known
	}
	return note
}

// now is the time as answers have it.
func now() time.Time { return time.Now().UTC() }
