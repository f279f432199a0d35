package webhook

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if process := os.Getenv("HOOKFERRY_BENCH_PROCESS"); process != "" {
		runBenchProcess(process)
		return
	}
	goleak.VerifyTestMain(m)
}
