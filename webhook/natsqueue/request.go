package natsqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// request asks the server to do something, and reads its answer.
func (s *Store) request(ctx context.Context, what string, text []byte, answer any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	defer cancel()
	m, err := s.nc.RequestWithContext(ctx, "$JS.API."+what, text)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("natsqueue: asking the server: %w", err)
	}
	var failed struct {
		Error *struct {
			ErrorCode   int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("natsqueue: an answer of the server: %w", err)
	}
	if e := failed.Error; e != nil {
		return &refusal{e.ErrorCode, e.Description}
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return fmt.Errorf("natsqueue: an answer of the server: %w", err)
	}
	return nil
}

// A refusal is an error that the server answers with.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("natsqueue: the server: %s (%d)", r.text, r.code)
}

// noMessage reports whether what was asked for is not there.
func (r *refusal) noMessage() bool {
	return r.code == codeNoMessage || r.code == codeNoSequence || r.code == codeNotDeleted && r.text == "no message found"
}

// purge erases what the stream has under a subject, below a sequence if it is not 0.
func (s *Store) purge(ctx context.Context, subject string, below uint64) error {
	text, err := json.Marshal(struct {
		Filter   string `json:"filter"`
		Sequence uint64 `json:"seq,omitempty"`
	}{subject, below})
	if err != nil {
		return err
	}
	return s.request(ctx, "STREAM.PURGE."+s.config.Stream, text, nil)
}

// delete erases a message, and reports whether it was there.
func (s *Store) delete(ctx context.Context, seq uint64) (bool, error) {
	err := s.request(ctx, "STREAM.MSG.DELETE."+s.config.Stream, fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, seq), nil)
	var refused *refusal
	if errors.As(err, &refused) && refused.noMessage() {
		return false, nil
	}
	return err == nil, err
}
