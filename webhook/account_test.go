package webhook

import (
	"fmt"
	"testing"
)

// The number of accounts is bounded. An account that is in use is not dropped.
func TestAccountsAreBounded(t *testing.T) {
	var as accounts
	busy, idle := as.of("busy"), as.of("idle")
	for i := range 3 * maxAccounts {
		as.of(fmt.Sprint(i))
		if n := len(as.recent) + len(as.older); n > 2*maxAccounts {
			t.Fatalf("got %d accounts, want at most %d", n, 2*maxAccounts)
		}
		if as.of("busy") != busy {
			t.Fatalf("the account in use was dropped after %d others, want it kept", i)
		}
	}
	if as.of("idle") == idle {
		t.Error("the account that was not used is kept, want it dropped")
	}
}
