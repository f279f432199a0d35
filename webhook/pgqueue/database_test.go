//go:build unix

package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/internal/testkit"
)

func TestLineError(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"refused", "refused"},
		{"failed to connect:\n\ta: dial error\n\tb: dial error", "failed to connect: a: dial error; b: dial error"},
		{"failed to connect:\n\ta: dial error\n\ta: dial error", "failed to connect: a: dial error"},
		{"failed to connect:\n\tresolving: no such host\n\tno such host\n", "failed to connect: resolving: no such host"},
	} {
		err := errors.New(tt.text)
		if got := error(lineError{err}); got.Error() != tt.want || !errors.Is(got, err) {
			t.Errorf("lineError of %q = %q, want %q", tt.text, got, tt.want)
		}
	}
}

// If no server listens, the error of Open names the address once, on one line, and does not
// have the password.
func TestOpenWithoutDatabase(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", testkit.Port(t))
	p, err := pgxpool.New(context.Background(), "postgres://u:password@"+addr+"/app")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = Open(t.Context(), p, Config{})
	var failed *pgconn.ConnectError
	if !errors.As(err, &failed) {
		t.Fatalf("Open = %v, want a ConnectError", err)
	}
	if text := err.Error(); strings.ContainsAny(text, "\n\t") || strings.Count(text, addr+" (") != 1 || strings.Contains(text, "password") {
		t.Errorf("Open = %q, want one line that names %s once and has no password", text, addr)
	}
}
