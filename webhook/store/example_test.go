package store_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook/store"
)

// A store uses a Window to recognize a delivery that was put before.
func ExampleWindow() {
	window := store.NewWindow(1_000_000, 24*time.Hour)
	now := time.Now()
	for _, id := range []string{"m1", "m2", "m1"} {
		fmt.Println(id, window.Add(store.KeyOf("crm", id), now))
	}
	// Output:
	// m1 true
	// m2 true
	// m1 false
}

// Pages reads a list from a database page by page. It holds no lock and no cursor between two
// elements.
func ExamplePages() {
	table := "abcdefg"
	read := func(from string) (page []string, next string, err error) {
		rest := table[strings.Index(table, from):]
		n := min(3, len(rest))
		return strings.Split(rest[:n], ""), rest[n:], nil
	}
	for element, err := range store.Pages("a", read) {
		fmt.Print(element, err, " ")
	}
	// Output: a<nil> b<nil> c<nil> d<nil> e<nil> f<nil> g<nil>
}

// Each call adds a request, and waits until it is stored. One transaction stores all requests that
// were added while the previous one ran.
func ExampleBatcher() {
	type request struct {
		text   string
		stored chan error
	}
	batcher := store.NewBatcher(2, 1<<20, func(rs []*request) {
		for _, r := range rs { // in one transaction
			r.stored <- nil
		}
	})
	defer batcher.Close()
	r := &request{text: "a delivery", stored: make(chan error, 1)}
	batcher.Add(r, len(r.text))
	fmt.Println(<-r.stored)
	// Output: <nil>
}
