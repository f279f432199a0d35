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

	"github.com/spf13/cobra"

	"github.com/hookferry/analytics"
)

const sendHelp = `Send makes one call, waits until the server has taken it, and prints its
messageId. 'hookferry send TYPE -h' lists what may be said of a call of that
type.

Examples:
  hookferry send track --user u1 --event "Signed Up" --property plan=pro
  hookferry send identify --user u1 --trait age=42 --trait 'tags=["beta"]'
  hookferry send page --anonymous a1 --name Home --property path=/
  hookferry send group --user u1 --group g1 --trait name=Acme
  hookferry send alias --user u1 --previous a1
`

// sendCommands has one command for each type of call.
func (p process) sendCommands() (list []*cobra.Command) {
	for _, kind := range callTypes {
		list = append(list, p.command(kind, "send one call of this type", "Send makes one call of this type.\n",
			func(o *options) action { return send(o, kind) }))
	}
	return list
}

// sent is what send --json prints.
type sent struct {
	MessageID string `json:"messageId"`
}

func send(o *options, kind string) action {
	call := callFlags(o, kind)
	asJSON := jsonFlag(o)
	o.noVariables()
	endpoint := o.text("endpoint", analytics.DefaultEndpoint, "`URL` of the server")
	writeKey := o.text("write-key", "", "`key` of the source; without it, the one that serve made up and keeps in the data folder")
	data := o.text("data", defaultData, "data `folder` of serve, for its write key")
	timeout := o.duration("timeout", 10*time.Second, "`time` to try for")
	return func(ctx context.Context, _ []string, p process) error {
		message, err := call()
		if err != nil {
			return err
		}
		if *writeKey == "" {
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
		id, err := deliver(ctx, client, message, *timeout, p)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p.stdout, sent{id})
		}
		_, err = fmt.Fprintf(p.stdout, "accepted %s\n", id)
		return err
	}
}

// deliver sends one message, by a client that nothing else uses, and returns
// its messageId once the server has taken it.
func deliver(ctx context.Context, client *analytics.Client, message analytics.Message, timeout time.Duration, p process) (id string, err error) {
	transport := p.transport()
	defer transport.CloseIdleConnections()
	var outcome analytics.Delivery
	client.FlushAt = 1
	client.Transport = &reportingTransport{transport, p.stderr}
	client.OnDelivery = func(d analytics.Delivery) {
		outcome = d
		for text := range d.Messages() {
			id = messageID(text)
		}
	}
	if err := inFlags(queue(client, message)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Of a message that was refused before it was called, Shutdown knows nothing.
	if err := client.Shutdown(ctx); err != nil || outcome.Reason != "" {
		return "", undelivered(outcome, timeout, err)
	}
	return id, nil
}

// queue hands a message to the client.
func queue(c *analytics.Client, m analytics.Message) error {
	switch m := m.(type) {
	case *analytics.Identify:
		return c.Identify(m)
	case *analytics.Track:
		return c.Track(m)
	case *analytics.Page:
		return c.Page(m)
	case *analytics.Screen:
		return c.Screen(m)
	case *analytics.Group:
		return c.Group(m)
	case *analytics.Alias:
		return c.Alias(m)
	}
	panic(fmt.Sprintf("unknown message %T", m))
}

func messageID(message []byte) string {
	var m struct {
		MessageID string `json:"messageId"`
	}
	// The client wrote the message.
	if err := json.Unmarshal(message, &m); err != nil {
		panic(err)
	}
	return m.MessageID
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

// A reportingTransport tells the user about attempts that the client makes
// again, so that nobody waits without knowing what for.
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
