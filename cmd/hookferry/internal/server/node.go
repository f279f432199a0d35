package server

import (
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// nodeName returns a name for this server: the host's name and a random part, because several
// containers may be process 1 of one host.
func nodeName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	// PostgreSQL shows the first 63 bytes of "hookferry NAME".
	const maxHost = 63 - len("hookferry ") - len("/abcdef")
	return host[:min(len(host), maxHost)] + "/" + strings.ToLower(rand.Text()[:6])
}

// node describes this server.
func (s *server) node() api.Node {
	stats := s.forwarder.Stats()
	n := api.Node{
		Name: s.name, Version: s.Version, Started: s.started, Ready: s.ready.ready(),
		InFlight: stats.InFlight, Delivered: stats.Delivered,
	}
	if s.feed != nil {
		n.Rates = s.feed.Rates("")
	}
	return n
}

// note describes this server to the other servers of the store.
func (s *server) note() []byte {
	note, err := json.Marshal(s.node())
	if err != nil {
		return nil // as if nothing were known
	}
	return note
}
