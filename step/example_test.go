package step_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/hookferry/analytics/step"
)

// A step is a handler. This one breaks the answer off in the middle.
func Example() {
	web := httptest.NewServer(step.Answer(200).WithBody("all is well").Cut())
	defer web.Close()
	resp, err := http.Get(web.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(resp.Status, string(body), err != nil)
	// Output: 200 OK all i true
}
