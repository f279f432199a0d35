package analytics

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(killEndpoint) != "" {
		fmt.Println(killChild())
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
