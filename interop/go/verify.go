package main

import (
	"fmt"
	"io"
	"net"
	"net/http"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// verify starts a server and prints its address. The server answers 200 to a request that
// the library accepts with every secret. Otherwise it answers 400 with the library's error.
func verify(secrets []string) error {
	var hooks []*standardwebhooks.Webhook
	for _, s := range secrets {
		hook, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			return err
		}
		hooks = append(hooks, hook)
	}
	if len(hooks) == 0 {
		return fmt.Errorf("INTEROP_STANDARD_SECRETS is empty")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("verifying on", ln.Addr())
	return http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		for i, hook := range hooks {
			if err == nil {
				if err = hook.Verify(body, r.Header); err != nil {
					err = fmt.Errorf("secret %d: %w", i, err)
				}
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
}
