package analytics

import (
	"log/slog"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // clients without a Logger warn of what tests provoke
	goleak.VerifyTestMain(m)
}
