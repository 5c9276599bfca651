/* Two static archives, with different prefixes, in one program without dlopen. The first has external weights,
 * which stand beside the program. */
#include "check.h"

packager_bundle_v1_fn one_bundle_v1, two_bundle_v1;

int main(void) {
  const packager_bundle_v1_t *tables[2] = {one_bundle_v1(), two_bundle_v1()};
  dynamic_t *d = dynamic_new(200);
  for (int i = 0; i < 2; ++i) {
    const packager_bundle_v1_t *t = tables[i];
    CHECK_OK(t, t->set_threads(i + 2));
    packager_session_t *session = session_open(t, NULL);
    dynamic_run_checked(t, session, d);
    CHECK_OK(t, dynamic_set_weights(t, session, (float)(i + 2)));
    CHECK_OK(t, dynamic_run(t, session, d));
    CHECK(d->sum[3] == d->a[3] * (float)(i + 5) + d->b[3]);
    d->ta.ndim = i;
    CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_RANK);
    d->ta.ndim = 2;
    CHECK_OK(t, t->session_destroy(session));
  }
  CHECK_TEXT(tables[0]->thread_error(), "input 'a': rank is 0, expected 2");
  CHECK_TEXT(tables[1]->thread_error(), "input 'a': rank is 1, expected 2");
  free(d);
  return 0;
}
