// Command receiver is a service that takes webhooks. It refuses wrong signatures, and
// works on each message once, however often it arrives.
//
//	WEBHOOK_SECRET=s3cret go run ./examples/receiver -listen localhost:9000
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hookferry/analytics/signature"
)

func main() {
	listen := flag.String("listen", "localhost:9000", "address to receive webhooks on")
	flag.Parse()
	secret := signature.Secret(os.Getenv("WEBHOOK_SECRET"))
	if secret == "" {
		log.Fatal("set WEBHOOK_SECRET to the shared secret of the webhooks")
	}

	// While a secret is being replaced, list the new one and the old one.
	http.Handle("/hook", &signature.Handler{
		Secrets: []signature.Secret{secret},
		Next:    http.HandlerFunc(receive),
	})
	// An answer must come within five seconds, or the webhook is sent again.
	server := &http.Server{ReadTimeout: 5 * time.Second}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s/hook", listener.Addr())
	log.Fatal(server.Serve(listener))
}

// seen has the messageIds of the messages that the service has worked on. A real receiver
// keeps these ids in its database, as a unique key of the table that its work writes to.
var seen sync.Map

func receive(w http.ResponseWriter, r *http.Request) {
	var events []signature.Event    // one, or those of a batch
	body, err := io.ReadAll(r.Body) // the Handler has bounded it
	if err == nil {
		events, err = signature.Events(r.Header.Get(signature.StandardID), body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, e := range events {
		work(e)
	}
}

func work(e signature.Event) {
	var message struct{ Type, UserID, Event, MessageID string }
	if err := json.Unmarshal(e.Body, &message); err != nil {
		log.Printf("webhook %s: %v", e.ID, err)
		return // it would fail again
	}
	// Webhooks arrive at least once. A deletion request has no messageId, so this example
	// may work on it twice. If write keys are public, use e.ID in place of messageId; requests
	// with a Standard Webhooks signature have it.
	if _, again := seen.LoadOrStore(message.MessageID, true); again && message.MessageID != "" {
		return
	}
	log.Printf("%s %q of user %s", message.Type, message.Event, message.UserID)
}
