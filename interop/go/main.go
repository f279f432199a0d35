// Command go sends the calls of the interoperability test with a Go client, which its
// argument selects. With the argument "verify" it verifies webhooks with the Go library of
// Standard Webhooks.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"time"
)

// A call is one element of the JSON array in the file that INTEROP_CALLS names.
type call struct {
	Type         string         `json:"type"`
	UserID       string         `json:"userId"`
	AnonymousID  string         `json:"anonymousId"`
	PreviousID   string         `json:"previousId"`
	GroupID      string         `json:"groupId"`
	Event        string         `json:"event"`
	Name         string         `json:"name"`
	Properties   map[string]any `json:"properties"`
	Traits       map[string]any `json:"traits"`
	Context      map[string]any `json:"context"`
	Integrations map[string]any `json:"integrations"`
	Timestamp    time.Time      `json:"timestamp"`
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: go segment|rudder|verify")
	}
	if os.Args[1] == "verify" {
		log.Fatal(verify(strings.Fields(os.Getenv("INTEROP_STANDARD_SECRETS"))))
	}
	data, err := os.ReadFile(os.Getenv("INTEROP_CALLS"))
	if err != nil {
		log.Fatal(err)
	}
	var calls []call
	if err := json.Unmarshal(data, &calls); err != nil {
		log.Fatal(err)
	}
	send := map[string]func([]call, string, string) error{"segment": sendSegment, "rudder": sendRudder}[os.Args[1]]
	if send == nil {
		log.Fatalf("no client %q", os.Args[1])
	}
	if err := send(calls, os.Getenv("INTEROP_ENDPOINT"), os.Getenv("INTEROP_WRITE_KEY")); err != nil {
		log.Fatal(err)
	}
}

// A result counts the outcomes that a client reports.
type result struct {
	sent   int
	failed error
}

// check returns an error if not all calls were sent.
func (r *result) check(calls int) error {
	if r.failed == nil && r.sent != calls {
		return fmt.Errorf("%d of %d calls were sent", r.sent, calls)
	}
	return r.failed
}
