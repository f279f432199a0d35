package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

func send(c *command, message analytics.Message) action {
	readMessage := messageFlags(c, message)
	c.jsonFlag()
	endpoint := c.String("endpoint", analytics.DefaultEndpoint, "`URL` of the server")
	writeKey := c.String("write-key", "", "`key` of the source; without it, the one that serve made up and keeps in the data folder")
	data := c.String("data", config.DefaultData, "data `folder` of serve, for its write key")
	timeout := c.duration("timeout", 10*time.Second, "`time` to try for")
	for _, name := range []string{"endpoint", "write-key", "data", "timeout"} {
		c.variable(name, nil)
	}
	return func(ctx context.Context) error {
		if err := readMessage(); err != nil {
			return err
		}
		if *writeKey == "" {
			var err error
			*writeKey, err = readWriteKey(*data)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return usagef("--write-key: want the key of the source; there is none in %s, where serve keeps the one it makes up", *data)
			case err != nil:
				return fmt.Errorf("--data: %w", err)
			}
		}
		client := analytics.New(*writeKey)
		client.Endpoint = *endpoint
		id, err := c.deliver(ctx, client, message, *timeout)
		if err != nil {
			return err
		}
		return c.print(map[string]string{"messageId": id}, "accepted %s", id)
	}
}

// deliver sends one message with a client that nothing else uses. It returns the messageId once the
// server has accepted the message.
func (c *command) deliver(ctx context.Context, client *analytics.Client, m analytics.Message, timeout time.Duration) (string, error) {
	transport := c.transport()
	defer transport.CloseIdleConnections()
	var outcome analytics.Delivery
	var sent struct {
		MessageID string `json:"messageId"`
	}
	client.FlushAt = 1
	client.Transport = &reportingTransport{transport, c.stderr}
	client.OnDelivery = func(d analytics.Delivery) {
		outcome = d
		for text := range d.Messages() {
			if err := json.Unmarshal(text, &sent); err != nil {
				panic(err) // the client wrote the message
			}
		}
	}
	if err := inFlags(client.Enqueue(ctx, m)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// If the message was refused before the call of Shutdown, Shutdown returns nil. Then only
	// outcome.Reason shows the refusal.
	if err := client.Shutdown(ctx); err != nil || outcome.Reason != "" {
		return "", undelivered(outcome, timeout, err)
	}
	return sent.MessageID, nil
}

// undelivered says why the server has not accepted a call, and what to do about it.
func undelivered(d analytics.Delivery, timeout time.Duration, err error) error {
	var status *analytics.StatusError
	switch {
	case d.Reason == analytics.ReasonShutdown:
		return fmt.Errorf("not accepted within %v", timeout)
	case errors.As(d.Err, &status) && status.Code == http.StatusUnauthorized:
		return fmt.Errorf("not accepted: the server does not know the write key; see --write-key and --data")
	case d.Err != nil:
		return fmt.Errorf("not accepted: %w", d.Err)
	}
	return err
}

// A reportingTransport reports on standard error each request that failed and will be repeated.
type reportingTransport struct {
	http.RoundTripper
	stderr io.Writer
}

func (t *reportingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	switch {
	case r.Context().Err() != nil:
	case err != nil:
		fmt.Fprintf(t.stderr, "hookferry send: %v; trying again\n", err)
	case response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= 500:
		fmt.Fprintf(t.stderr, "hookferry send: the server answered %s; trying again\n", response.Status)
	}
	return response, err
}
