package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/hookferry/analytics/webhook/internal/wire"
)

func TestEveryStatusHasAnOutcome(t *testing.T) {
	want := func(status int) (Outcome, Reason) {
		switch status {
		case 408, 425, 429:
			return OutcomeRetryable, ReasonThrottled
		}
		return []Outcome{1: OutcomeRetryable, OutcomeDelivered, OutcomePermanent, OutcomePermanent, OutcomeRetryable}[status/100],
			[]Reason{1: ReasonProtocol, "", ReasonRedirect, ReasonRefused, ReasonServerError}[status/100]
	}
	for status := 100; status <= 599; status++ {
		out, reason := statusOutcome(status)
		if wantOut, wantReason := want(status); out != wantOut || reason != wantReason {
			t.Errorf("statusOutcome(%d) = %v, %q; want %v, %q", status, out, reason, wantOut, wantReason)
		}
	}
	for _, status := range []int{600, 999} {
		if out, reason := statusOutcome(status); out != OutcomeRetryable || reason != ReasonServerError {
			t.Errorf("statusOutcome(%d) = %v, %q; want retryable as 5xx", status, out, reason)
		}
	}
}

func TestEveryTransportErrorHasAnOutcome(t *testing.T) {
	op := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		name   string
		err    error
		out    Outcome
		reason Reason
	}{
		{"cut off at the timeout", wire.ErrTimeout, OutcomeRetryable, ReasonTimeout},
		{"deadline", context.DeadlineExceeded, OutcomeRetryable, ReasonTimeout},
		{"i/o timeout", op(os.ErrDeadlineExceeded), OutcomeRetryable, ReasonTimeout},
		{"connect timeout", op(os.NewSyscallError("connect", syscall.ETIMEDOUT)), OutcomeRetryable, ReasonTimeout},
		{"no such host", op(&net.DNSError{Err: "no such host", IsNotFound: true}), OutcomeRetryable, ReasonDNS},
		{"resolver fails", op(&net.DNSError{Err: "server misbehaving", IsTemporary: true}), OutcomeRetryable, ReasonDNS},
		{"resolver times out", op(&net.DNSError{Err: "timeout", IsTimeout: true}), OutcomeRetryable, ReasonDNS},
		{"refused", op(os.NewSyscallError("connect", syscall.ECONNREFUSED)), OutcomeRetryable, ReasonConnection},
		{"reset", op(os.NewSyscallError("read", syscall.ECONNRESET)), OutcomeRetryable, ReasonConnection},
		{"broken pipe", op(os.NewSyscallError("write", syscall.EPIPE)), OutcomeRetryable, ReasonConnection},
		{"no route", op(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), OutcomeRetryable, ReasonConnection},
		{"no network", op(os.NewSyscallError("connect", syscall.ENETUNREACH)), OutcomeRetryable, ReasonConnection},
		{"bare errno", syscall.ECONNABORTED, OutcomeRetryable, ReasonConnection},
		{"closed without an answer", io.EOF, OutcomeRetryable, ReasonConnection},
		{"cut off in the answer", io.ErrUnexpectedEOF, OutcomeRetryable, ReasonConnection},
		{"connection closed by the client", net.ErrClosed, OutcomeRetryable, ReasonConnection},
		{"not HTTP", errors.New(`net/http: HTTP/1.x transport connection broken: malformed HTTP response "220 smtp"`), OutcomeRetryable, ReasonProtocol},
		{"not TLS", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, OutcomeRetryable, ReasonProtocol},
		{"TLS alert", op(tls.AlertError(40)), OutcomeRetryable, ReasonConnection},
		{"proxy", wire.ProxyError(407), OutcomeRetryable, ReasonConnection},
		{"verification", &tls.CertificateVerificationError{Err: errors.New("x")}, OutcomePermanent, ReasonCertificate},
		{"self-signed", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, OutcomePermanent, ReasonCertificate},
		{"unknown authority", x509.UnknownAuthorityError{}, OutcomePermanent, ReasonCertificate},
		{"wrong host", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}, OutcomePermanent, ReasonCertificate},
		{"expired", x509.CertificateInvalidError{Reason: x509.Expired}, OutcomePermanent, ReasonCertificate},
		{"no roots to verify with", &tls.CertificateVerificationError{Err: x509.SystemRootsError{Err: os.ErrPermission}}, OutcomeRetryable, ReasonCertificate},
		{"private address", op(&addressError{Addr: netip.MustParseAddr("10.0.0.1")}), OutcomePermanent, ReasonAddress},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, err := range []error{tt.err, fmt.Errorf("wrapped: %w", tt.err), &url.Error{Op: "Post", URL: "https://u:secret@h/?key=secret", Err: tt.err}} {
				if out, reason := errorOutcome(err); out != tt.out || reason != tt.reason {
					t.Errorf("errorOutcome(%v) = %v, %q; want %v, %q", err, out, reason, tt.out, tt.reason)
				}
			}
		})
	}
}
