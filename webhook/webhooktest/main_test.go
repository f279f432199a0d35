package webhooktest

import (
	"io"
	"log"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// http.Transport logs the bytes after a misstated body.
	log.SetOutput(io.Discard)
	goleak.VerifyTestMain(m)
}
