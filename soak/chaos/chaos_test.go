package chaos

import (
	"context"
	"errors"
	"log/slog"
	"os"
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
