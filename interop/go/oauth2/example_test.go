// Package oauth2_test shows webhooks that are authorized by OAuth 2.0 client credentials.
// It uses golang.org/x/oauth2, which the library itself does not require.
package oauth2_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// The token is fetched once, and again when it is about to expire.
func Example() {
	// The customer has two servers: one issues tokens, the other receives webhooks.
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-of-%s","token_type":"bearer","expires_in":3600}`, id)
	}))
	defer auth.Close()
	arrived := make(chan string, 1)
	crm := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- r.Header.Get("Authorization")
	}))
	defer crm.Close()

	// Each endpoint with its own credentials needs its own token source.
	config := clientcredentials.Config{ClientID: "hookferry", ClientSecret: "s3cret", TokenURL: auth.URL}
	// Requests for tokens end before the attempt does.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: 4 * time.Second})
	tokens := config.TokenSource(ctx)

	acme := webhook.Destination{
		ID:        "acme",
		Endpoints: []webhook.Endpoint{{URL: crm.URL}},
		Authorize: func(context.Context, string) (map[string]string, error) {
			token, err := tokens.Token()
			if err != nil {
				return nil, err
			}
			return map[string]string{"Authorization": token.Type() + " " + token.AccessToken}, nil
		},
	}

	queue, err := memqueue.Open(memqueue.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	forwarder, err := webhook.New(webhook.Config{Store: queue, Destinations: []webhook.Destination{acme}})
	if err != nil {
		fmt.Println(err)
		return
	}
	run := make(chan error)
	go func() { run <- forwarder.Run(context.Background()) }()
	if err := forwarder.Forward(ctx, "acme", &analytics.Track{UserId: "u1", Event: "Signed Up"}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(<-arrived)
	fmt.Println(forwarder.Shutdown(ctx), <-run)
	// Output:
	// Bearer token-of-hookferry
	// <nil> <nil>
}
