package natsqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A request asks a server to read messages directly from the stream.
type request struct {
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Next      string   `json:"next_by_subj,omitempty"`
	Last      string   `json:"last_by_subj,omitempty"`
	MultiLast []string `json:"multi_last,omitempty"`
}

// A stored is a message of the stream.
type stored struct {
	subject string
	seq     uint64
	at      time.Time
	pending int // how many messages after this one match the request
	data    []byte
}

const (
	// pageLen and pageBytes bound a page of a list, in messages and in bytes.
	pageLen   = 256
	pageBytes = 1 << 20
	// askAgain is the first wait before a request is repeated, so that another replica may answer.
	// The wait doubles each time.
	askAgain = 250 * time.Millisecond
)

// read reads from the stream within callTimeout. It returns a page of messages for each request.
// The servers choose the replica that answers. This replica may lag a little behind the leader. For
// a while after a failure the servers may choose one that is out of reach; then read asks again.
func (s *conn) read(ctx context.Context, requests ...request) ([][]stored, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	inbox := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(inbox + ".*.*")
	if err != nil {
		return nil, fmt.Errorf("natsqueue: reading: %w", err)
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil { // the requests bound what is pending
		return nil, err
	}
	pages, done := make([][]stored, len(requests)), make([]bool, len(requests))
	left := len(requests)
	for attempt, wait := 0, askAgain; left > 0; attempt, wait = attempt+1, 2*wait {
		for i := range requests {
			if done[i] {
				continue
			}
			pages[i] = nil
			text, err := json.Marshal(requests[i])
			if err == nil {
				err = s.nc.PublishRequest("$JS.API.DIRECT.GET."+s.config.Stream, fmt.Sprintf("%s.%d.%d", inbox, attempt, i), text)
			}
			if err != nil {
				return nil, fmt.Errorf("natsqueue: reading: %w", err)
			}
		}
		asking, cancel := context.WithTimeout(ctx, wait)
		for left > 0 {
			var m *nats.Msg
			if m, err = sub.NextMsgWithContext(asking); err != nil {
				break
			}
			of, at, _ := strings.Cut(m.Subject[len(inbox)+1:], ".")
			i, bad := strconv.Atoi(at)
			if of != strconv.Itoa(attempt) || bad != nil || i < 0 || i >= len(pages) || done[i] {
				continue
			}
			switch status := m.Header.Get("Status"); status {
			case "503": // no replica can answer at the moment
			case "204", "404": // the end of the page
				done[i] = true
				left--
			case "":
				var x stored
				x, err = parseStored(m)
				pages[i] = append(pages[i], x)
			default:
				err = fmt.Errorf("the server: %s %s", status, m.Header.Get("Description"))
			}
			if err != nil {
				break
			}
		}
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("natsqueue: reading: %w", err)
		}
	}
	return pages, nil
}

func parseStored(m *nats.Msg) (x stored, err error) {
	x = stored{subject: m.Header.Get("Nats-Subject"), data: m.Data}
	if x.seq, err = strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64); err != nil {
		return x, err
	}
	x.pending, _ = strconv.Atoi(m.Header.Get("Nats-Num-Pending"))
	x.at, err = time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	return x, err
}

// list yields the messages under subjects, in their order. It stops after an error.
func (s *conn) list(ctx context.Context, subjects string) iter.Seq2[stored, error] {
	return func(yield func(stored, error) bool) {
		for next := uint64(1); ; {
			pages, err := s.read(ctx, request{Batch: pageLen, MaxBytes: pageBytes, Seq: next, Next: subjects})
			if err != nil {
				yield(stored{}, err)
				return
			}
			if len(pages[0]) == 0 {
				return
			}
			for _, m := range pages[0] {
				next = m.seq + 1
				if !yield(m, nil) {
					return
				}
			}
		}
	}
}

// lasts returns the last message of each subject that matches the pattern subjects. The answer
// comes from any replica, so it may be a little out of date.
func (s *conn) lasts(ctx context.Context, subjects string) ([]stored, error) {
	pages, err := s.read(ctx, request{MultiLast: []string{subjects}, Batch: maxNodes})
	if err != nil {
		return nil, err
	}
	return pages[0], nil
}

// last returns the last message of a subject, as the leader has it.
func (s *conn) last(ctx context.Context, subject string) (seq uint64, data []byte, err error) {
	return s.get(ctx, request{Last: subject})
}

// get returns a message as the leader has it. If there is no such message, seq is 0.
func (s *conn) get(ctx context.Context, r request) (seq uint64, data []byte, err error) {
	err = within(ctx, func(ctx context.Context) error {
		text, err := json.Marshal(r)
		if err != nil {
			return err
		}
		var answer struct {
			Error   *jetstream.APIError
			Message struct {
				Sequence uint64 `json:"seq"`
				Data     []byte
			}
		}
		m, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+s.config.Stream, text)
		if err == nil {
			err = json.Unmarshal(m.Data, &answer)
		}
		if err == nil && answer.Error != nil && answer.Error.ErrorCode != jetstream.JSErrCodeMessageNotFound {
			err = answer.Error
		}
		seq, data = answer.Message.Sequence, answer.Message.Data
		return err
	})
	return seq, data, err
}

// within calls f with a context that ends after callTimeout. f sends a request to the server.
func within(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	err := f(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("natsqueue: asking the server: %w", err)
	}
	return nil
}

// info returns the server's description of the stream, with the subjects that match a filter.
func (s *conn) info(ctx context.Context, subjects string) (info *jetstream.StreamInfo, err error) {
	err = within(ctx, func(ctx context.Context) error {
		info, err = s.stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
		return err
	})
	return info, err
}

// purge erases the messages under a subject. If below is not 0, it erases only messages with a
// lower sequence than that.
func (s *conn) purge(ctx context.Context, subject string, below uint64) error {
	return within(ctx, func(ctx context.Context) error {
		options := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
		if below > 0 {
			options = append(options, jetstream.WithPurgeSequence(below))
		}
		return s.stream.Purge(ctx, options...)
	})
}

// delete erases a message, and reports whether it was there.
func (s *conn) delete(ctx context.Context, seq uint64) (there bool, err error) {
	err = within(ctx, func(ctx context.Context) error {
		err := s.stream.DeleteMsg(ctx, seq)
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok && (refused.ErrorCode == jetstream.JSErrCodeMessageNotFound || refused.ErrorCode == codeNoSequence ||
			refused.ErrorCode == codeNotDeleted && refused.Description == "no message found") {
			return nil
		}
		there = err == nil
		return err
	})
	return there, err
}
