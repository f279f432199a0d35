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
	want := func(status int) (outcome, Reason) {
		switch status {
		case 408, 425, 429:
			return retryable, ReasonThrottled
		}
		return []outcome{1: retryable, delivered, permanent, permanent, retryable}[status/100],
			[]Reason{1: ReasonProtocol, "", ReasonRedirect, ReasonRefused, ReasonServerError}[status/100]
	}
	for status := 100; status <= 599; status++ {
		out, reason := statusOutcome(status)
		if wantOut, wantReason := want(status); out != wantOut || reason != wantReason {
			t.Errorf("statusOutcome(%d) = %v, %q; want %v, %q", status, out, reason, wantOut, wantReason)
		}
	}
	for _, status := range []int{600, 999} {
		if out, reason := statusOutcome(status); out != retryable || reason != ReasonServerError {
			t.Errorf("statusOutcome(%d) = %v, %q; want retryable as 5xx", status, out, reason)
		}
	}
}

func TestEveryTransportErrorHasAnOutcome(t *testing.T) {
	op := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		name   string
		err    error
		out    outcome
		reason Reason
	}{
		{"cut off at the timeout", errAttemptTimeout, retryable, ReasonTimeout},
		{"deadline", context.DeadlineExceeded, retryable, ReasonTimeout},
		{"i/o timeout", op(os.ErrDeadlineExceeded), retryable, ReasonTimeout},
		{"connect timeout", op(os.NewSyscallError("connect", syscall.ETIMEDOUT)), retryable, ReasonTimeout},
		{"no such host", op(&net.DNSError{Err: "no such host", IsNotFound: true}), retryable, ReasonDNS},
		{"resolver away", op(&net.DNSError{Err: "server misbehaving", IsTemporary: true}), retryable, ReasonDNS},
		{"resolver slow", op(&net.DNSError{Err: "timeout", IsTimeout: true}), retryable, ReasonDNS},
		{"refused", op(os.NewSyscallError("connect", syscall.ECONNREFUSED)), retryable, ReasonConnection},
		{"reset", op(os.NewSyscallError("read", syscall.ECONNRESET)), retryable, ReasonConnection},
		{"broken pipe", op(os.NewSyscallError("write", syscall.EPIPE)), retryable, ReasonConnection},
		{"no route", op(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), retryable, ReasonConnection},
		{"no network", op(os.NewSyscallError("connect", syscall.ENETUNREACH)), retryable, ReasonConnection},
		{"bare errno", syscall.ECONNABORTED, retryable, ReasonConnection},
		{"closed without an answer", io.EOF, retryable, ReasonConnection},
		{"cut off in the answer", io.ErrUnexpectedEOF, retryable, ReasonConnection},
		{"closed here", net.ErrClosed, retryable, ReasonConnection},
		{"not HTTP", errors.New(`net/http: HTTP/1.x transport connection broken: malformed HTTP response "220 smtp"`), retryable, ReasonProtocol},
		{"not TLS", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, retryable, ReasonProtocol},
		{"TLS alert", op(tls.AlertError(40)), retryable, ReasonConnection},
		{"proxy", wire.ProxyError(407), retryable, ReasonConnection},
		{"verification", &tls.CertificateVerificationError{Err: errors.New("x")}, permanent, ReasonCertificate},
		{"self-signed", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, permanent, ReasonCertificate},
		{"unknown authority", x509.UnknownAuthorityError{}, permanent, ReasonCertificate},
		{"wrong host", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "x"}, permanent, ReasonCertificate},
		{"expired", x509.CertificateInvalidError{Reason: x509.Expired}, permanent, ReasonCertificate},
		{"no authorities to verify with", &tls.CertificateVerificationError{Err: x509.SystemRootsError{Err: os.ErrPermission}}, retryable, ReasonCertificate},
		{"private address", op(&AddressError{Addr: netip.MustParseAddr("10.0.0.1")}), permanent, ReasonAddress},
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

func TestReasonsAreAllCounted(t *testing.T) {
	var c counters
	for _, r := range reasons {
		c.settled(&Settlement{Verdict: Bury, Reason: r})
	}
	for i := range c.dead {
		if n := c.dead[i].Load(); n != 1 {
			t.Errorf("%s counted %d times, want once", reasons[i], n)
		}
	}
}
