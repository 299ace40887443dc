import js from '@eslint/js';
import globals from 'globals';

const message = 'Text is never inserted as HTML.';
const asHtml = ['innerHTML', 'outerHTML', 'insertAdjacentHTML', 'setHTMLUnsafe', 'srcdoc'];

export default [
  { ignores: ['node_modules/'] },
  js.configs.recommended,
  { files: ['src/**'], languageOptions: { globals: { ...globals.browser, ...globals.worker } } },
  { files: ['*.js', 'test/**'], languageOptions: { globals: globals.node } },
  {
    rules: {
      'no-restricted-properties': [
        'error',
        ...asHtml.map((property) => ({ property, message })),
        { object: 'document', property: 'write', message },
      ],
      'no-eval': 'error',
      'no-implied-eval': 'error',
      'no-shadow': 'error',
      'prefer-const': 'error',
      eqeqeq: 'error',
    },
  },
];
