package server

import (
	"crypto/rand"
	"encoding/json"
	"os"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// nodeName returns a name for this server: the host's name and a random part. Process ids are not
// unique, because several containers of one host may have a process 1.
func nodeName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	// PostgreSQL shows the first 63 bytes of "hookferry NAME".
	const maxHost = 63 - len("hookferry ") - len("/abcdef")
	return host[:min(len(host), maxHost)] + "/" + strings.ToLower(rand.Text()[:6])
}

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

// note returns the description of this server that its heartbeats carry to the other servers.
func (s *server) note() []byte {
	note, _ := json.Marshal(s.node()) // texts, numbers and times have no errors
	return note
}
