package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/step"
)

// A receiver stores the messageId in the transaction that does the work, and answers after the
// commit. Here its first answer is lost, so the forwarder sends the event again.
func Example_idempotentReceiver() {
	var (
		mu      sync.Mutex // stands for a transaction
		seen    = make(map[string]bool)
		balance int
	)
	receive := func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			MessageID  string
			Properties struct{ Amount int }
		}
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}
		mu.Lock()         // BEGIN
		defer mu.Unlock() // COMMIT, and only then the 200
		if seen[event.MessageID] {
			return // 200 for a repeated event, or the forwarder would send it again
		}
		seen[event.MessageID] = true // INSERT INTO seen
		balance += event.Properties.Amount
	}
	lose := func(w http.ResponseWriter, r *http.Request) {
		receive(w, r)
		panic(http.ErrAbortHandler) // the connection breaks
	}
	forwarder, acme, stop := started(memory(),
		step.Serve(http.HandlerFunc(lose)), step.Serve(http.HandlerFunc(receive)))

	ctx := context.Background()
	deposit := &analytics.Track{UserId: "u1", Event: "Deposited", Properties: map[string]any{"amount": 100}}
	if err := forwarder.Forward(ctx, "acme", deposit); err != nil {
		fmt.Println(err)
	}
	requests, _ := acme.Wait(ctx, 2)
	stop()
	fmt.Println("arrived", len(requests), "times, balance", balance)
	// Output: arrived 2 times, balance 100
}
