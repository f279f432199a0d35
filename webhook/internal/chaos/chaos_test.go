package chaos

import (
	"context"
	"errors"
	"os"
	"testing"
)

// A node that cannot open its store ends when it is told to, with the reason.
func TestANodeWithoutAStoreEnds(t *testing.T) {
	in, told, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	before := os.Stdin
	os.Stdin = in
	defer func() { os.Stdin = before }()
	gone := errors.New("there is no store")
	err = runNode(func(context.Context, string) (Queue, func() string, func(), error) {
		told.Close()
		return nil, nil, nil, gone
	}, "n1\nhttp://127.0.0.1:1/\naddress")
	if !errors.Is(err, gone) {
		t.Errorf("runNode = %v, want %v", err, gone)
	}
}
