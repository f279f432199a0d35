package webhook_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics/webhook/internal/bench"
)

func TestMain(m *testing.M) {
	bench.Main()
	if process := os.Getenv("HOOKFERRY_BENCH_PROCESS"); process != "" {
		runBenchProcess(process)
		return
	}
	goleak.VerifyTestMain(m)
}
