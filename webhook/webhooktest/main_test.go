package webhooktest

import (
	"io"
	"log"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// http.Transport logs the bytes that follow a body with a wrong length.
	log.SetOutput(io.Discard)
	goleak.VerifyTestMain(m)
}
