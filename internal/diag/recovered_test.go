package diag

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func broken(v any) (err error) {
	defer Recovered(&err)
	panic(v)
}

// A panic becomes an error that says where it came from; a thrown error stays what it is.
func TestRecovered(t *testing.T) {
	e := As(broken("BUG: two roots"))
	assert.Equal(t, "bug", e.Code)
	assert.Regexp(t, `^BUG: two roots \(reprise/internal/diag\.broken, recovered_test\.go:\d+\)$`, e.Message)
	assert.Contains(t, e.Hint, "report it")
	thrown := Errorf("shape", "no")
	assert.Same(t, thrown, As(broken(thrown)))
	index := func() (err error) {
		defer Recovered(&err)
		var list []int
		return Errorf("never", "%d", list[len(list)])
	}
	assert.Regexp(t, `index out of range .*recovered_test\.go`, As(index()).Message)
	assert.NoError(t, func() (err error) { defer Recovered(&err); return nil }())
}
