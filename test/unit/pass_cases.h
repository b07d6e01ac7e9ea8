/* Cases of test_pass.c: a pass, the lines of a model before it, and the lines after it; NULL: not changed. */
{"decompose",
 X "%1 = param f32[8] \"m\"\n%2 = param f32[8] \"v\"\n%3 = param f32[8] \"w\"\n"
   "%4 = param f32[8] \"b\"\n%5 = batch_norm %0 %1 %2 %3 %4 eps=0.5\n"
   "output %5 \"y\"\n",
 X "%1 = param f32[8] \"m\"\n%2 = param f32[8] \"v\"\n%3 = param f32[8] \"w\"\n"
   "%4 = param f32[8] \"b\"\n%5 = scalar value=0.5\n%6 = add %2 %5\n"
   "%7 = rsqrt %6\n%8 = mul %3 %7\n%9 = reshape %8 shape=[8,1,1]\n"
   "%10 = mul %0 %9\n%11 = mul %1 %8\n%12 = sub %4 %11\n"
   "%13 = reshape %12 shape=[8,1,1]\n%14 = add %10 %13\noutput %14 \"y\"\n"},
    {"decompose", V "%1 = softmax %0 axis=1\noutput %1 \"y\"\n",
     V "%1 = reduce_max %0 axes=[1] keepdim=true\n%2 = sub %0 %1\n%3 = exp %2\n"
       "%4 = sum %3 axes=[1] keepdim=true\n%5 = div %3 %4\noutput %5 \"y\"\n"},
    {"simplify", X "%1 = reshape %0 shape=[$0,8,6,6]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = reshape %0 shape=[$0,48,6]\n%2 = reshape %1 shape=[$0,6,48]\n"
       "output %2 \"y\"\n",
     X "%1 = reshape %0 shape=[$0,6,48]\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = expand %0 shape=[$0,8,6,6]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = concat %0 axis=1\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = permute %0 axes=[0,2,3,1]\n%2 = permute %1 axes=[0,3,1,2]\n%3 = exp %2\n"
       "output %3 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = permute %0 axes=[0,2,3,1]\n%2 = permute %1 axes=[0,2,3,1]\n"
       "output %2 \"y\"\n",
     X "%1 = permute %0 axes=[0,3,1,2]\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = clamp %0\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = clamp %0 max=6.0\n%2 = exp %1\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = adaptive_avg_pool %0 kernel=[6,6]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = slice %0 axis=1 shape=[8]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = slice %0 axis=1 shape=[7]\n%2 = exp %1\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = relu %0\n%2 = relu %1\noutput %2 \"y\"\n",
     X "%1 = relu %0\noutput %1 \"y\"\n"},
    {"simplify", V "%1 = param f32[8,4] \"w\"\n%2 = matmul %0 %1\noutput %2 \"y\"\n",
     V "%1 = param f32[8,4] \"w\"\n%2 = permute %1 axes=[1,0]\n%3 = linear %0 %2\n"
       "output %3 \"y\"\n"},
    {"simplify",
     V "%1 = input f32[8,4] \"z\"\n%2 = scalar value=3.0\n%3 = mul %0 %2\n"
       "%4 = matmul %3 %1\noutput %4 \"y\"\n",
     V "%1 = input f32[8,4] \"z\"\n%2 = matmul %0 %1\n%3 = scalar value=3.0\n"
       "%4 = mul %2 %3\noutput %4 \"y\"\n"},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4,1,1] \"s\"\n%3 = conv %0 %1\n"
       "%4 = mul %3 %2\noutput %4 \"y\"\n",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4,1,1] \"s\"\n"
       "%3 = reshape %2 shape=[4]\n%4 = reshape %3 shape=[4,1,1,1]\n%5 = mul %1 %4\n"
       "%6 = conv %0 %5\noutput %6 \"y\"\n"},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4] \"b\"\n"
       "%3 = param f32[4,1,1] \"t\"\n%4 = conv %0 %1 %2\n%5 = add %3 %4\n"
       "output %5 \"y\"\n",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4] \"b\"\n"
       "%3 = param f32[4,1,1] \"t\"\n%4 = reshape %3 shape=[4]\n%5 = add %2 %4\n"
       "%6 = conv %0 %1 %5\noutput %6 \"y\"\n"},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4,1,1] \"s\"\n%3 = conv %0 %1\n"
       "%4 = mul %3 %2\noutput %4 \"y\"\noutput %3 \"z\"\n",
     NULL},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[6] \"s\"\n%3 = conv %0 %1\n"
       "%4 = mul %3 %2\noutput %4 \"y\"\n",
     NULL},
    {"cse", X "%1 = exp %0\n%2 = exp %0\n%3 = add %1 %2\noutput %3 \"y\"\n",
     X "%1 = exp %0\n%2 = add %1 %1\noutput %2 \"y\"\n"},
    {"cse",
     X "%1 = param f32[8,1,1] \"a\"\n%2 = param f32[8,1,1] \"b\"\n%3 = add %0 %1\n"
       "%4 = add %0 %2\n%5 = mul %3 %4\noutput %5 \"y\"\n",
     NULL},
    {"cse",
     X "%1 = clamp %0 max=6.0\n%2 = clamp %0 max=5.0\n%3 = add %1 %2\n"
       "output %3 \"y\"\n",
     NULL},
