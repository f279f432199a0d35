package receivertest

import (
	"context"
	"net/http"
)

// RunCheck runs one check of a handler.
func RunCheck(ctx context.Context, check Check, h http.Handler, c Config) error {
	c.URL, c.Transport = "http://receiver.test/hook", &handlerTransport{handler: h}
	return check.Run(ctx, c)
}
