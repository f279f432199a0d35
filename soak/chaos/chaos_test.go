package chaos

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/hookferry/analytics/webhook"
)

// A node that cannot open its store waits for the end of its standard input, and then ends with the
// error.
func TestNodeWithoutStoreEnds(t *testing.T) {
	in, told, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	before := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = before }()
	gone := errors.New("there is no store")
	err = runNode(Store{Open: func(context.Context, string, *slog.Logger) (webhook.Store, func(), error) {
		told.Close()
		return nil, nil, gone
	}}, "n1\nhttp://127.0.0.1:1/\naddress")
	if !errors.Is(err, gone) {
		t.Errorf("runNode = %v, want %v", err, gone)
	}
}

// The ledger finds what is out of order: an event that arrives after a later one of its key, one that
// arrives before the one ahead of it has ended, and one that comes again too late.
func TestLedgerFindsDisorder(t *testing.T) {
	const first, second, third = "n1-0-0", "n1-0-2", "n1-75-0" // of one key, in their order
	for _, tt := range []struct {
		arrivals              string
		disorder, early, late int
	}{
		{"a a= b= c=", 0, 0, 0},
		{"a= a= b= b= c=", 0, 0, 0},
		{"b= a= c=", 1, 0, 0},
		{"a b= c=", 0, 1, 0},
		{"a= b= a= c=", 0, 0, 1},
	} {
		l := &ledger{lines: make(map[string]*line), arrived: make(map[string]bool), accepted: map[string]bool{first: true, second: true, third: true}}
		for _, a := range strings.Fields(tt.arrivals) {
			k := l.arrive(map[byte]string{'a': first, 'b': second, 'c': third}[a[0]])
			if k != nil && len(a) > 1 {
				k.ended = true
			}
		}
		if n := len(l.disorder()); n != tt.disorder || len(l.early) != tt.early || l.late != tt.late {
			t.Errorf("%s: %d out of order, %d early, %d late, want %d, %d, %d", tt.arrivals, n, len(l.early), l.late, tt.disorder, tt.early, tt.late)
		}
	}
}
