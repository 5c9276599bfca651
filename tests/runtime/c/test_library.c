/* A library that a bundle calls. */
int test_version(void);
int test_version(void) { return VERSION; }

float test_value(void);
float test_value(void) { return VALUE; }
