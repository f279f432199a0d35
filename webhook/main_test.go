package webhook

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("HOOKFERRY_NULL_RECEIVER") != "" {
		NullReceiver()
		return
	}
	goleak.VerifyTestMain(m)
}
